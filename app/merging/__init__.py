"""Merging of versions with PEFT's ``add_weighted_adapter``: the recipe and the child process."""

#: Subfolder of a merge's folder that receives the two result files.
RESULT_FOLDER = "merged"
