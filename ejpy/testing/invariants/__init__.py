"""What must hold in every history, one module for each subject; `told.py` has what all of them look things up in."""
