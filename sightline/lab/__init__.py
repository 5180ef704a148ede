"""The laboratory: claims from the literature as experiments with a computed verdict.

sl.lab.run("softmax-saturation").verdict            "supported"
sightline lab list | run NAME | report
"""

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.executor import finding, run, steps
from sightline.lab.experiment import Check, Experiment, Finding

__all__ = ["EXPERIMENTS", "Check", "Experiment", "Finding", "finding", "run", "steps"]
