"""What experiments measure with: rivals, fits, tasks, spectra. None of them is an experiment."""
