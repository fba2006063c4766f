"""Tensor work outside the engine.

- Merging of versions with PEFT's ``add_weighted_adapter``: the recipe and the child process.
- Conversion of pickled weights, for the command line.
"""

#: Subfolder of a merge's folder that receives the two result files.
RESULT_FOLDER = "merged"
