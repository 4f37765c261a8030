#!/usr/bin/env bash
# Fuzzes the native kernels under AddressSanitizer with UBSan, then under ThreadSanitizer. Needs GCC, nothing else.
#
#     tests/native/sanitize.sh [SECONDS]          seconds of each fuzz, 20 by default; compiling takes about a minute
#     PYTHON=.venv/bin/python tests/native/sanitize.sh 20 tests/native ...    then these tests under ASan too
#
# The kernels are compiled once, as the portable variant with this processor's own instructions. Each sanitizer must first
# find a fault that is planted for it.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
shift || true
native=src/triforce/native
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
flags=(-O1 -g1 -std=gnu11 -march=native -ffp-contract=fast -fno-math-errno -fno-omit-frame-pointer -fPIC -fopenmp -I$native)
address=(-fsanitize=address,undefined -fno-sanitize-recover=all)
thread=(-fsanitize=thread)

compile() {  # FOLDER FLAG...
  mkdir -p "$built/$1"
  for source in "$native"/{kernels_portable,drivers,attention,forward,select}.c tests/native/fuzz.c; do
    gcc "${flags[@]}" "${@:2}" -c "$source" -o "$built/$1/$(basename "$source" .c).o"
  done
}

must_find() {  # NAME PROGRAM FAULT
  if "$2" "$3" 2>"$built/report"; then
    echo "$1 did not see the planted fault: $3" && exit 1
  fi
  grep -q "$1" "$built/report" || { cat "$built/report" && exit 1; }
  echo "$1 finds the planted fault: $3"
}

compile address "${address[@]}" & first=$!
compile thread "${thread[@]}" & second=$!
wait $first
wait $second
gcc "${thread[@]}" -c -O1 -g1 tests/native/threads.c -o "$built/thread/threads.o"
gcc "${address[@]}" -fopenmp "$built"/address/*.o -lm -o "$built/fuzz-address"
gcc "${thread[@]}" "$built"/thread/*.o -lm -o "$built/fuzz-thread"  # without -fopenmp: threads.c is the runtime

export TSAN_OPTIONS=halt_on_error=1
must_find 'AddressSanitizer: heap-buffer-overflow' "$built/fuzz-address" plant-overrun
must_find 'ThreadSanitizer: data race' "$built/fuzz-thread" plant-race
"$built/fuzz-address" "$seconds"
"$built/fuzz-thread" "$seconds"

if (($#)); then
  python=${PYTHON:-python3}
  cp -r src "$built/src"
  rm -f "$built"/src/triforce/native/_kernels*
  library=$built/src/triforce/native/_kernels$("$python" -c 'from importlib.machinery import EXTENSION_SUFFIXES as s; print(s[0])')
  gcc -shared "${address[@]}" -fopenmp "$built"/address/{kernels_portable,drivers,attention,forward,select}.o -lm -o "$library"
  LD_PRELOAD="$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$built/src" \
    "$python" -m pytest -s -p no:cacheprovider "$@"
fi
