"""Merging versions into a new one with PEFT's own ``add_weighted_adapter``: the recipe, the process."""

#: Where in its folder a merge leaves the two files of its result.
RESULT_FOLDER = "merged"
