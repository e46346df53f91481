"""A build installed to a folder of its own, and commands that run there."""

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

COMPILERS = {'g++': 'gcc', 'clang++': 'clang'}
COMPILERS = {cxx: c for cxx, c in COMPILERS.items() if shutil.which(cxx)}


def run(*command, returncode=0, **options):
    """The finished process; fails with what it printed when its exit code is another one."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == returncode, f'{command}\n{result.stdout}{result.stderr}'
    return result


def two_at_a_time(function, jobs):
    """Calls function(*job) for each job, raises the first failure, returns the results in order."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda job: function(*job), jobs))


class Installed:
    """`prefix` holds what `cmake --install` gave: all of it, or some components."""

    def __init__(self, build, *components):
        self.folder = tempfile.mkdtemp()
        self.prefix = os.path.join(self.folder, 'prefix')
        first = os.path.join(self.folder, 'first')
        for component in components or ['']:
            only = ['--component', component] if component else []
            run('cmake', '--install', build, '--prefix', first, *only)
        os.rename(first, self.prefix)  # no file may hold the path it was installed to
        # What it finds is what was installed, not what another shell has set.
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith('VARVE_')}
        self.environment['PATH'] = os.path.join(self.prefix, 'bin') + ':' + os.environ['PATH']
        self.environment['CMAKE_PREFIX_PATH'] = self.prefix
        self.environment['PKG_CONFIG_PATH'] = os.path.join(self.prefix, 'share', 'pkgconfig')

    def close(self):
        shutil.rmtree(self.folder)

    def run(self, *command, **options):
        return run(*command, **{'env': self.environment, **options})

    def files(self):
        found = []
        for folder, _, names in os.walk(self.prefix):
            found += [os.path.relpath(os.path.join(folder, n), self.prefix) for n in names]
        return found

    def new_folder(self):
        return tempfile.mkdtemp(dir=self.folder)
