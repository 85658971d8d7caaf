"""Prints, as JSON, what TensorBoard's own reader finds in a folder: each tag's [step, value] pairs."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator

reader = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0})
reader.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}))
