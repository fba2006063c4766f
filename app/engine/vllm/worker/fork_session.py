"""Imported first by the fork server: it leaves the server's session, and the engines that it forks with it.

See app/engine/vllm/worker/fork_server.py. Nothing else may import this module.
"""

import os
import signal

# A leader of a process group has a session of its own already, or cannot get one.
if os.getpgrp() != os.getpid():
    os.setsid()

# Signals were blocked before this process began. What has come since was for the server's group, of which it is no
# part any more: to ignore a signal drops it.
for _blocked in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    _handler = signal.signal(_blocked, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_blocked})
    signal.signal(_blocked, _handler)
