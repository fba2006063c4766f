"""Install Node and the console's packages in ``.clients``, from pinned locks with hashes.

    python3.11 -m deploy.console.install

Neither runs an install script. A second run without changes does nothing. Needs an interpreter with pip, since uv gets
pip's configuration: not that of ``.venv``.
"""

from deploy.install import ROOT, install_uv
from tests.clients.install import FOLDER, LOCKS, NODE, install_node, install_python

SOURCE = ROOT / "app" / "console" / "web"
#: Folder of the packages, in which the build runs.
WORK = FOLDER / SOURCE.name


def main() -> None:
    install_uv()
    install_python(LOCKS / f"{NODE}.txt")
    install_node(SOURCE)


if __name__ == "__main__":
    main()
