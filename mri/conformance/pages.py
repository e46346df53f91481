#!/usr/bin/env python3
"""The pages that are made from the tests: the table in README.md, the must-pass lists, RESULTS.md.

Usage: pages.py [--check] MRI_CONFORM            the table and the lists
       pages.py --results MRI_CONFORM PLUGIN...  RESULTS.md
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = '<!-- tests -->\n', '<!-- /tests -->\n'
VERSIONS = ('1.0', '1.1')


def said(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def pages(program):
    """Path -> text, as it must be."""
    readme = os.path.join(HERE, 'README.md')
    with open(readme) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    table = said(program, '--list', '--markdown')
    made = {readme: before + BEGIN + table + END + after}
    for version in VERSIONS:
        made[os.path.join(HERE, f'must_pass-{version}.txt')] = said(program, '--must-pass', version)
    return made


def check(program):
    stale = []
    for path, text in pages(program).items():
        with open(path) as file:
            if file.read() != text:
                stale.append(path)
    for path in stale:
        print(f'{path}: not what {program} makes of its tests; run mri/conformance/pages.py')
    return 1 if stale else 0


def write(program):
    for path, text in pages(program).items():
        with open(path, 'w') as file:
            file.write(text)
    return 0


def row(program, plugin):
    with tempfile.NamedTemporaryFile(suffix='.json') as out:
        subprocess.run([program, plugin, '--level', '5', '--json', out.name], capture_output=True)
        result = json.load(out)
    facts = result['plugin']
    cells = [os.path.basename(plugin)[:-3], facts['version']]
    for run in result['runs']:
        n = run['summary']
        bad = sum(n.get(status, 0) for status in ('FAIL', 'CRASH', 'TIMEOUT'))
        shown = [n.get(status, 0) for status in ('PASS', 'WARN', 'NOT_SUPPORTED')] + [bad]
        cells.append('not spoken' if 'not_spoken' in run else ' / '.join(map(str, shown)))
    return '| ' + ' | '.join(cells) + ' |'


def write_results(program, plugins):
    text = ('# Plugins of the tree under mri-conform\n\n'
            'Made by `mri/conformance/pages.py --results`. Each cell: tests that pass / pass with '
            'a warning / test what is not offered / fail.\n\n'
            '| plugin | version | host of MRI 1.0 | host of MRI 1.1 |\n|---|---|---|---|\n')
    text += ''.join(row(program, plugin) + '\n' for plugin in sorted(plugins))
    with open(os.path.join(HERE, 'RESULTS.md'), 'w') as file:
        file.write(text)
    return 0


def main():
    arguments = sys.argv[1:]
    if arguments[0] == '--check':
        return check(arguments[1])
    if arguments[0] == '--results':
        return write_results(arguments[1], arguments[2:])
    return write(arguments[0])


if __name__ == '__main__':
    sys.exit(main())
