#!/usr/bin/env python3
"""mri-conform against `varve serve` over HTTP, at MRI 1.0 and 1.1.

Usage: conform_url.py MRI_CONFORM VARVE
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e', 'serve'))
from server_process import CLASSES, FAKE, KEYS, Server, merged


def main():
    conform, varve = sys.argv[1:3]
    server = Server(varve, merged(FAKE, CLASSES), keys=KEYS)
    try:
        return subprocess.run(
            [conform, server.url, '--key-env', 'CONFORM_KEY'],
            env={**os.environ, 'CONFORM_KEY': KEYS['vip']['key']}).returncode
    finally:
        server.stop()


if __name__ == '__main__':
    sys.exit(main())
