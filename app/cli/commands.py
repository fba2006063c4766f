"""Commands that the server's package adds to the client's ``tenora``, by the entry-point group ``tenora.commands``.

This module is imported for the list of commands, so it imports no other of this package.
"""

from dataclasses import replace

from tenora_client.cli.plugins import Command

_SERVER = (
    Command("init", "Set up HOME and the database, and print the first platform key once.", "app.cli.setup:init"),
    Command("serve", "Serve until SIGINT or SIGTERM.", "app.cli.serve:serve"),
    Command("migrate", "Upgrade the database's schema to this release.", "app.cli.setup:migrate"),
    Command(
        "database-role",
        "Print or apply the rights of the database role of engine replicas.",
        "app.cli.database_role:database_role",
    ),
    Command("gc", "Remove blobs and uploads that no version needs, and expired rows.", "app.cli.gc:gc"),
    Command(
        "plan",
        "Show the memory of weights, LoRA slots and KV cache, the sequences that fit in the rest, and advice.",
        "app.cli.plan:plan",
    ),
    Command("audit", "Verify or export the audit trail, the record of all changes.", "app.cli.audit:app"),
    Command("store", "Ownership of the store.", "app.cli.store:app"),
    Command("bench", "Measure Tenora on this machine.", "app.cli.bench:app"),
)

#: Commands that never had an earlier name.
_NEW = {"database-role"}

#: The earlier names of the server's commands stay as hidden aliases.
COMMANDS = (
    Command("server", "Run a server, set it up and maintain it.", commands=_SERVER),
    Command("engines", "Engine replicas on Ray Serve, behind any number of servers.", "app.cli.engines:app"),
    Command(
        "verify",
        "Compare a version's answers on the running engine with transformers and PEFT.",
        "app.cli.verify:verify",
    ),
    *(replace(command, hidden=True) for command in _SERVER if command.name not in _NEW),
)
