#!/usr/bin/env python3
"""The interface as abidiff sees it: a library that holds every struct and every callback signature.

Usage: witness.py --write   writes witness-<newest>.abi, and appended-<newest>.txt: what it adds to
                            the release before, to be reviewed; older files are never written again
"""

import os
import re
import subprocess
import sys
import tempfile

import layout

# abidiff's exit code is a sum of these.
FAILED, MISUSED, CHANGED, INCOMPATIBLE = 1, 2, 4, 8
CALLBACK = re.compile(r'([\w\s*]+?)\(\*(\w+)\)(\([^;]*\));')


def callbacks(headers):
    """A definition for each function that a struct points to, named <struct>__<member>."""
    for folder, _, names in sorted(os.walk(headers)):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding='utf-8') as file:
                text = re.sub(r'/\*.*?\*/', '', file.read(), flags=re.S)
            for struct, body in re.findall(r'^(?:typedef )?struct (\w+) \{(.*?)^\}', text,
                                           re.S | re.M):
                for returned, member, arguments in CALLBACK.findall(body):
                    name = f'{struct}__{member}'
                    yield f'{returned.strip()} {name}{arguments} {{ __builtin_trap(); }}'


def source(headers):
    """Pointers, not objects: a symbol's size is no part of the contract."""
    return '\n'.join(['#include "mri/mri.h"',
                      *(f'{s} *witness_{s};' for s, _, _ in layout.read_fields()),
                      *callbacks(headers), ''])


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def describe(version, compiler='cc', headers=layout.HEADERS):
    """abidw's text about the witness of these headers."""
    macro = 'MRI_' + version.replace('.', '_')
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'witness.c'), 'w', encoding='utf-8') as file:
            file.write(source(headers))
        built = run(compiler, '-std=c11', '-g', '-shared', '-fPIC', '-I', os.path.abspath(headers),
                    f'-DMRI_TARGET_VERSION={macro}', 'witness.c', '-o', 'witness.so', cwd=folder)
        if built.returncode != 0:
            raise RuntimeError(built.stderr)
        return run('abidw', '--no-corpus-path', '--no-comp-dir-path', '--no-show-locs',
                   '--no-elf-needed', '--no-parameter-names', 'witness.so', cwd=folder,
                   check=True).stdout


def path(name):
    return os.path.join(layout.HERE, name)


def stored(version):
    with open(path(f'witness-{version}.abi'), encoding='utf-8') as file:
        return file.read()


def reviewed(version):
    with open(path(f'appended-{version}.txt'), encoding='utf-8') as file:
        return file.read()


def difference(old, new):
    """(exit code, report without places in files) of abidiff between two texts of abidw."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ('old.abi', 'new.abi')]
        for name, text in zip(files, (old, new)):
            with open(name, 'w', encoding='utf-8') as file:
                file.write(text)
        done = run('abidiff', '--leaf-changes-only', *files)
    return done.returncode, re.sub(r' at \S+:\d+:\d+', '', done.stdout) + done.stderr


def findings(old, new, appended=''):
    """What is wrong with `new` after the release `old`. A change of the kind that may be harmless
    is wrong unless the whole report is the reviewed one: a suppression of abidiff's would hide a
    member of another type, too, in a struct that also grows."""
    code, report = difference(old, new)
    if code & (FAILED | MISUSED):
        raise RuntimeError(f'abidiff: exit code {code}: {report}')
    if code & INCOMPATIBLE or (code & CHANGED and report != appended):
        return report
    return ''


def main():
    if sys.argv[1:] != ['--write']:
        sys.exit(__doc__)
    before, newest = layout.VERSIONS[-2:]
    text = describe(newest)
    with open(path(f'witness-{newest}.abi'), 'w', encoding='utf-8') as file:
        file.write(text)
    with open(path(f'appended-{newest}.txt'), 'w', encoding='utf-8') as file:
        file.write(difference(stored(before), text)[1])


if __name__ == '__main__':
    main()
