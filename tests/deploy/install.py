"""Install the tools that check the Helm chart in ``.clients``: Helm, and Kubernetes' schemas.

    python -m tests.deploy.install [--lock]

npm has Helm in a package of layers for functions, with a checksum in the lock. A second run without changes does
nothing. ``--lock`` recompiles the locks instead.
"""

import argparse
import zipfile
from pathlib import Path

from deploy.install import install_uv
from tests.clients import install as clients

HERE = Path(__file__).resolve().parent
LOCK = HERE / "python" / "kubernetes_validate.txt"
HELM = clients.FOLDER / "helm" / "bin" / "helm"
VALIDATE = clients.FOLDER / LOCK.stem / "bin" / "kubernetes-validate"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the tools of the Helm chart.")
    parser.add_argument("--lock", action="store_true", help="compile the locks again instead")
    lock = parser.parse_args().lock
    install_uv()
    clients.install_python(clients.LOCKS / f"{clients.NODE}.txt")
    if lock:
        clients.compile_python(LOCK.with_suffix(".in"), clients.lock_environment())
        clients.npm("install", "--package-lock-only", folder=HERE / "helm")
        return
    clients.install_python(LOCK)
    clients.install_node(HERE / "helm")
    extract_helm()


def extract_helm() -> None:
    (layer,) = (clients.FOLDER / "helm" / "node_modules").glob("@aws-cdk/*/lib/layer.zip")
    HELM.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(layer) as archive:
        HELM.write_bytes(archive.read("helm/helm"))
    HELM.chmod(0o755)


if __name__ == "__main__":
    main()
