"""The orders in which torch.distributed.pipelining computes the microbatches of a step, for comparison.

peer.py calls `run` with `schedule`, `stages`, `chunks` and `microbatches`. It returns, by rank, a list of actions as
"F0.3": a forward (F), a backward or its half for inputs (B), or that for weights (W) of the rank's chunk and the
microbatch. Nothing is run: the functions that make the lists need neither processes nor a model, only a few attributes,
so a schedule is made without its constructor.
"""
from torch.distributed.pipelining import schedules

CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zero_bubble_v": schedules.ScheduleZBVZeroBubble,
}


def run(config):
    stages, chunks, microbatches = config["stages"], config["chunks"], config["microbatches"]
    kind = CLASSES[config["schedule"]]
    schedule = kind.__new__(kind)
    schedule._n_microbatches = microbatches
    schedule._num_stages = schedule.num_stages = stages * chunks
    schedule.pp_group_size, schedule.n_local_stages = stages, chunks
    schedule.number_of_rounds = max(1, microbatches // stages)
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    order = schedule._get_pipeline_order() if config["schedule"] == "gpipe" else {
        rank: schedule._calculate_single_rank_operations(rank) for rank in range(stages)}

    def text(rank, action):
        kind = action.computation_type.value
        return f"{'B' if kind == 'I' else kind}{0 if action.stage_index == rank else action.stage_index // stages}." \
            f"{action.microbatch_index}"

    return {"ranks": [[text(rank, a) for a in order[rank] if a is not None and a.computation_type.value in "FBIW"]
                      for rank in range(stages)]}
