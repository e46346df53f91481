#!/bin/sh
# How the binaries of this folder were made, once, on Debian 12 with gcc 12.2: from these sources
# and the frozen headers of MRI 1.0, for any x86-64. They are kept to show that what ran on a host
# of 1.0 still does, so they are not made again: a new build would prove nothing about old binaries.
#
# Usage: build.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
flags="-std=gnu11 -O2 -march=x86-64 -Wall -Wextra -I $here/../../../mri/abi/frozen_1_0"
for kind in attention batching kv_tier quantizer runtime summary; do
  gcc $flags -fPIC -fvisibility=hidden -shared -nostartfiles -s -o "$out/$kind-kept_1_0.so" \
    "$here/$kind.c" -Wl,-z,defs,-z,now,-z,relro,-z,noexecstack,-z,noseparate-code,--build-id
done
gcc $flags -s -o "$out/host_probe.bin" "$here/host_probe.c" "$here/calls.c" \
  -Wl,-z,noseparate-code,--build-id
