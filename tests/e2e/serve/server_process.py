"""A `varve serve` process with keys and a profile of its own, and a plain HTTP client."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

READY_S = 90

# Stack tables of the runtime without a model.
FAKE = {
    'runtime': {'plugin': 'fake'},
    'kv_tier': {'plugin': 'none'},
    'quantizer': {'plugin': 'none'},
    'attention': {'plugin': 'none'},
    'summary': {'plugin': 'none'},
    'batching': {'plugin': 'fcfs'},
}
LIGHT = {
    'runtime': {'plugin': 'light', 'warm_up': False, 'prefix_cache_mb': 256},
    'kv_tier': {'plugin': 'age', 'hot_tokens': 256},
}
# Every token as it was computed, in f32: the same text gives the same logits however it is read.
EXACT = {
    'runtime': {'plugin': 'light', 'warm_up': False, 'prefix_cache_mb': 256, 'compute': 'f32'},
    'kv_tier': {'plugin': 'full'},
    'quantizer': {'plugin': 'bf16', 'format': 'f32'},
    'attention': {'plugin': 'dense'},
    'summary': {'plugin': 'none'},
}
KEYS = {
    'vip': {'key': 'sk-vip', 'class': 'vip', 'tiers': ['flex:standard']},
    'team-a': {'key': 'sk-a', 'class': 'standard', 'tiers': ['priority:vip']},
    'team-b': {'key': 'sk-b', 'class': 'standard'},
    'admin': {'key': 'sk-admin', 'class': 'vip', 'scope': 'admin'},
}
CLASSES = {'class.vip': {'priority': 100}, 'class.standard': {'priority': 0}}


def toml_value(value):
    return json.dumps(value)


def to_toml(tables):
    lines = []
    for table, values in tables.items():
        lines.append(f'[{table}]')
        lines += [f'{key} = {toml_value(value)}' for key, value in values.items()]
    return '\n'.join(lines) + '\n'


def keys_toml(keys):
    tables = {}
    for name, values in keys.items():
        values = dict(values)
        digest = hashlib.sha256(values.pop('key').encode()).hexdigest()
        tables[f'key.{name}'] = {'sha256': digest, 'tenant': name, **values}
    return to_toml(tables)


def merged(*layers):
    out = {}
    for layer in layers:
        for table, values in layer.items():
            out[table] = {**out.get(table, {}), **values}
    return out


class Server:
    """Started by the constructor; stop() returns the exit code. `profiles`: name of a file beside
    the profile -> its tables."""

    def __init__(self, program, tables, keys=None, model='', prefix=(), profiles=None):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name
        server = {'port': 0, 'log_format': 'json', 'shutdown_timeout_s': 10}
        if keys is not None:
            server['keys_path'] = self.write('keys.toml', keys_toml(keys))
            os.chmod(server['keys_path'], 0o600)
        for name, profile in (profiles or {}).items():
            self.write(name, to_toml(profile))
        self.server_table = server
        self.profile = self.write_profile(tables)
        self.log_path = os.path.join(self.folder, 'log')
        environment = {k: v for k, v in os.environ.items() if not k.startswith('VARVE_')}
        if model:
            environment['VARVE_MODEL'] = model
        with open(self.log_path, 'wb') as log:
            # It ends with the test, also when that is killed.
            self.process = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', *prefix, program, 'serve', '--profile',
                 self.profile],
                stdout=log, stderr=log, env=environment,
            )
        self.port = self._wait_for_port()
        self.url = f'http://127.0.0.1:{self.port}'

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as out:
            out.write(text)
        return path

    def write_profile(self, tables):
        return self.write('profile.toml', to_toml(merged({'server': self.server_table}, tables)))

    def log(self):
        with open(self.log_path, encoding='utf-8', errors='replace') as log:
            return log.read()

    def _wait_for_port(self):
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            found = re.search(r'listening on http://[^:"]+:(\d+)', self.log())
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f'the server did not start: {self.log()[-3000:]}')

    def wait_for_log(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.log():
            if time.monotonic() > end:
                raise AssertionError(f'no {text!r} in the log: {self.log()[-3000:]}')
            time.sleep(0.02)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()
        return self.process.returncode

    def request(self, method, path, body=None, key='', headers=None, timeout=60):
        """(status, headers, body): JSON decoded where it is JSON."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)
        sent = dict(headers or {})
        if key:
            sent['Authorization'] = f'Bearer {key}'
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            sent.setdefault('Content-Type', 'application/json')
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            data = answer.read()
            if 'json' in answer.headers.get('Content-Type', ''):
                data = json.loads(data)
            return answer.status, answer.headers, data
        finally:
            connection.close()

    def events(self, path, body, key='', headers=None):
        """The data of each event of a streamed answer, as text."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        sent = {'Content-Type': 'application/json', **(headers or {})}
        if key:
            sent['Authorization'] = f'Bearer {key}'
        with contextlib.closing(connection):
            connection.request('POST', path, body=json.dumps(body), headers=sent)
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f'{answer.status}: {answer.read()[:500]}')
            for line in answer:
                if line.startswith(b'data: '):
                    yield line[6:].decode().strip()

    def metrics(self, key=''):
        """Metric name with its labels -> value."""
        _, _, text = self.request('GET', '/metrics', key=key)
        values = {}
        for line in text.decode().splitlines():
            if line and not line.startswith('#'):
                name, value = line.rsplit(' ', 1)
                values[name] = float(value)
        return values

    def raw(self, data, seconds=10):
        """Sends bytes as they are and returns all that comes back until the server closes."""
        with socket.create_connection(('127.0.0.1', self.port), timeout=seconds) as connection:
            connection.sendall(data)
            out = b''
            with contextlib.suppress(TimeoutError, ConnectionError):
                while part := connection.recv(65536):
                    out += part
            return out
