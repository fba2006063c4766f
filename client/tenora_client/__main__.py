"""``python -m tenora_client``: run the command without an installed script."""

from tenora_client.cli.root import main

main()
