"""The laboratory: every claim of the theory as an experiment with a verdict.

sl.lab.run("softmax-saturation").verdict            "supported"
sightline lab list | run NAME | report
"""

from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import Check, Experiment, Finding
from sightline.lab.running import finding, run, steps

__all__ = ["EXPERIMENTS", "Check", "Experiment", "Finding", "finding", "run", "steps"]
