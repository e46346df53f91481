"""Headers and field lists that differ from the tree's, for trying the gates on them."""

import os
import shutil
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..')
sys.path.insert(0, os.path.join(ROOT, 'mri', 'abi'))
import layout  # noqa: E402

FROZEN = os.path.join(ROOT, 'mri', 'abi', 'frozen_1_0')


def changed_headers(folder, header, old, new):
    """A copy of the headers in `folder`, made by the first call, with `old` replaced in one."""
    headers = os.path.join(folder, 'include')
    if not os.path.exists(headers):
        shutil.copytree(layout.HEADERS, headers)
    path = os.path.join(headers, 'mri', header)
    with open(path, encoding='utf-8') as file:
        text = file.read()
    assert old in text
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text.replace(old, new, 1))
    return headers


def fields_with(struct, member, after, since='1.0'):
    """The field list with one more member."""
    structs = []
    for name, kind, members in layout.read_fields():
        if name == struct:
            at = [m for m, _ in members].index(after) + 1
            members = members[:at] + [(member, since)] + members[at:]
        structs.append((name, kind, members))
    return structs
