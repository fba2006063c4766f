"""Mistakes of new users: one sentence on stderr that names the next step, and its exit code."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import Tenora
from tests.support.live_server import Site
