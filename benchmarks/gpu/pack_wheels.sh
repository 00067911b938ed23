#!/usr/bin/env bash
# Packs into FOLDER what Burnish needs and a bare CUDA machine (Linux, x86-64, Python 3.12, with torch, transformers and
# peft, but no package registry) usually lacks, in the versions of constraints.txt. More can be named, such as a peer:
#     benchmarks/gpu/pack_wheels.sh wheels trl==1.16.0
set -euo pipefail
folder=${1:?usage: benchmarks/gpu/pack_wheels.sh FOLDER [NAME==VERSION ...]}
constraints=$(dirname "$0")/../../constraints.txt
mkdir -p "$folder"
for package in annotated-types datasets dill httpcore2 httpx2 multiprocess pydantic pydantic_core starlette truststore \
  typing-inspection uvicorn "${@:2}"; do
  [[ $package == *==* ]] || package=$(grep -x "$package==.*" "$constraints")
  "${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -d "$folder" "$package"
done
du -sh "$folder"
