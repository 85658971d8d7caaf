"""For a script's PYTHONPATH: until the file $PACED_UNTIL is there, each step of an optimizer takes 50 ms more, so that a
test can act in the middle of the training however fast the machine is."""

import os
import time

_go = os.environ.get("PACED_UNTIL")
if _go and "RANK" in os.environ:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def _wait(*_):
        if not os.path.exists(_go):
            time.sleep(0.05)

    register_optimizer_step_post_hook(_wait)
