"""The image, built and run with podman: ``python -m tests.containers``."""
