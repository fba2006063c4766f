"""Session of the fork server: moves it, and the engines that it forks, out of the server's session.

The fork server imports this first; see app/engine/vllm/worker/fork_server.py. Nothing else may import this module.
"""

import os
import signal

# A process group leader already has its own session, or cannot create one.
if os.getpgrp() != os.getpid():
    os.setsid()

# These signals were blocked before this process began. Pending ones were meant for the server's group, which this
# process has left. Ignoring a signal drops it.
for _blocked in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
    _handler = signal.signal(_blocked, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_blocked})
    signal.signal(_blocked, _handler)
