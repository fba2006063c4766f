"""Imported first by the fork server: it leaves the server's session, and the engines that it forks with it.

See app/engine/forking.py. Nothing else may import this module.
"""

import os

# A leader of a process group has a session of its own already, or cannot get one.
if os.getpgrp() != os.getpid():
    os.setsid()
