"""Starts the servers under test and waits until they answer."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from load import Target

READY_S = 120
KEYS = {'vip': 'bench-vip-key', 'standard': 'bench-standard-key'}

# One stack for both classes where what is compared is the scheduling, not the memory.
PROFILE = """
[runtime]
plugin = "light"
prefill_chunk_tokens = 512
resident_weights = true
prefix_cache_mb = 1024
[server]
port = {port}
keys_path = "{keys}"
log_level = "warning"
[class.vip]
priority = 100
[class.standard]
priority = 0
[stack.main]
concurrency = {concurrency}
concurrency_max = {concurrency}
queue_max = 200
"""


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def wait_ready(url, process):
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f'{process.args[0]} ended early with {process.returncode}')
        try:
            with urllib.request.urlopen(url + '/health', timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f'{url}/health did not answer within {READY_S} s')


@contextlib.contextmanager
def running(command, url, log_path, environment=None):
    with open(log_path, 'ab') as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
        )
        try:
            wait_ready(url, process)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def varve(args, concurrency=16):
    """Yields a Target of `varve serve` with a vip and a standard key."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        keys, profile = os.path.join(folder, 'keys.toml'), os.path.join(folder, 'bench.toml')
        with open(keys, 'w') as out:
            for name, key in KEYS.items():
                digest = hashlib.sha256(key.encode()).hexdigest()
                out.write(f'[key.{name}]\nsha256 = "{digest}"\n')
                out.write(f'tenant = "{name}"\nclass = "{name}"\n')
        with open(profile, 'w') as out:
            out.write(PROFILE.format(port=port, keys=keys, concurrency=concurrency))
        os.chmod(keys, 0o600)
        command = [args.varve, 'serve', '--profile', profile]
        for override in args.set or []:
            command += ['--set', override]
        url = f'http://127.0.0.1:{port}'
        with running(command, url, args.log, {'VARVE_MODEL': args.model}):
            yield Target(url, KEYS['standard'], {'ignore_eos': True})


@contextlib.contextmanager
def llama_server(args, concurrency=16, context_tokens=4096):
    """Yields a Target of llama.cpp's own server at its best settings: flash attention, unified
    KV, continuous batching, all cores."""
    port = free_port()
    command = [args.peer, '-m', args.model, '--host', '127.0.0.1', '--port', str(port)]
    command += ['-np', str(concurrency), '-c', str(concurrency * context_tokens), '-fa', 'on']
    command += ['-t', str(os.cpu_count()), '-tb', str(os.cpu_count()), '--no-webui']
    url = f'http://127.0.0.1:{port}'
    with running(command, url, args.log):
        yield Target(url, '', {'ignore_eos': True, 'cache_prompt': True})
