#!/usr/bin/env python3
"""Writes model files that must be refused, each with a piece of the message to refuse it with.

usage: bad_models.py FOLDER
Creates FOLDER/<case>.gguf, FOLDER/<case>/ (HuggingFace folders) and FOLDER/expected.tsv (path, tab,
message piece). Each case is one change to a small model that is otherwise good; the two good ones
are written too, with an empty piece.
"""

import os
import sys

sys.dont_write_bytecode = True  # the source tree stays clean
from bad_folders import Folder, folder_cases  # noqa: E402
from bad_gguf import Gguf, gguf_cases  # noqa: E402


def main(folder):
    lines = []
    for name, piece, change in gguf_cases():
        model, path = Gguf(), os.path.join(folder, name + ".gguf")
        change(model)
        model.write(path)
        lines.append(f"{path}\t{piece}\n")
    for name, piece, change in folder_cases():
        model, path = Folder(), os.path.join(folder, name)
        change(model)
        model.write(path)
        lines.append(f"{path}\t{piece}\n")
    for name in ("weights.bin", "weights.pt", "weights.pkl"):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(b"\x80\x02}q\0.")
        lines.append(f"{path}\tpickled weights can run code\n")
    with open(os.path.join(folder, "expected.tsv"), "w") as file:
        file.writelines(lines)


if __name__ == "__main__":
    main(sys.argv[1])
