"""Build the image and run it: alone and hardened, as the chart's pod, then with compose behind nginx.

    python -m tests.containers [--only image,hardened,pod,stack]

deploy/container/prepare.sh installs podman. The command prints the time of each step, and the size of the image with
its parts as JSON. An exit code of 1 means that a step failed.
"""

import argparse
import json
from pathlib import Path

from app.demo.train import ensure_demo
from tests.containers.hardened import run_hardened
from tests.containers.image import build_image, survey
from tests.containers.pod import run_pod
from tests.containers.podman import ROOT, Watch, prepare
from tests.containers.stack import run_stack

STAGES = ("image", "hardened", "pod", "stack")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("--only", default=",".join(STAGES), help="stages, separated by commas")
    stages = parser.parse_args().only.split(",")
    watch = Watch()
    prepare()
    watch.lap("base image")
    if "image" in stages:
        build_image()
        watch.lap("build")
        print(json.dumps(survey(), indent=1), flush=True)
    demo = ensure_demo(ROOT / ".pytest_cache" / "demo-home", None)
    watch.lap("demo's models")
    if "hardened" in stages:
        run_hardened(demo, watch)
    if "pod" in stages:
        run_pod(demo, watch)
    if "stack" in stages:
        run_stack(demo, watch, Path(ROOT / ".containers" / "stack"))


if __name__ == "__main__":
    main()
