"""Tests of the package from its wheel: muster_test.py WHEEL. Exits with 0 if all pass."""

import json
import math
import os
import sys
import tempfile
import unittest
import zipfile

WHEEL = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, WHEEL)  # a wheel of pure Python can be imported as it is
import muster  # noqa: E402


class MusterTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "report")
        self.stop = os.path.join(self.folder.name, "stop")
        open(self.file, "w").close()
        os.environ.update(MUSTER_REPORT_FILE=self.file, MUSTER_STOP_FILE=self.stop)

    def tearDown(self):
        self.folder.cleanup()

    def lines(self):
        with open(self.file) as file:
            return [json.loads(line, parse_constant=self.fail) for line in file]

    def test_comes_from_the_wheel(self):
        self.assertTrue(muster.__file__.startswith(WHEEL), muster.__file__)
        with zipfile.ZipFile(WHEEL) as wheel:
            self.assertIsNone(wheel.testzip())
            self.assertIn(f"muster-{muster.__version__}.dist-info/RECORD", wheel.namelist())

    def test_does_nothing_outside_of_muster(self):
        for name in ("MUSTER_REPORT_FILE", "MUSTER_STOP_FILE"):
            del os.environ[name]
        muster.report(1, loss=1)
        muster.checkpoint_done("a", 1)
        self.assertFalse(muster.should_stop())

    def test_a_report_is_a_line(self):
        muster.report(10, loss=2.5, tokens=3, text="x", pair=(1, 2))
        muster.report(11.0, loss=math.nan, norm=-math.inf)
        self.assertEqual(self.lines(), [{"step": 10, "loss": 2.5, "tokens": 3},
                                        {"step": 11, "loss": "nan", "norm": "-inf"}])

    def test_a_file_that_is_gone_stops_no_script(self):
        os.remove(self.file)
        muster.report(1, loss=1)
        self.assertFalse(os.path.exists(self.file))

    def test_checkpoints(self):
        import pathlib
        muster.checkpoint_done(pathlib.Path("runs") / "a.pt", 5)
        self.assertEqual(self.lines(), [{"checkpoint": "runs/a.pt", "step": 5}])

    def test_should_stop(self):
        self.assertFalse(muster.should_stop())
        open(self.stop, "w").close()
        self.assertTrue(muster.should_stop())

    def test_the_cursor_uses_each_sample_once_however_many_ranks_there_are(self):
        for world in (1, 2, 3, 7, 12):
            seen = [i for rank in range(world) for i in muster.data_cursor(4, 10, rank, world)]
            self.assertEqual(seen, list(range(40, 50)), world)
        os.environ.update(RANK="1", WORLD_SIZE="2")
        self.assertEqual(muster.data_cursor(0, 10), range(5, 10))


if __name__ == "__main__":
    unittest.main()
