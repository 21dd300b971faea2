#!/usr/bin/env bash
# Everything about zerodraft on one GPU, in under 8 minutes, nothing downloaded. Results: bench/results/gpu/.
#   bench/gpu.sh              on a card          bench/gpu.sh --smoke     the same in small, on any machine
# PYTHON names the interpreter (default: .venv/bin/python if it is there, else python3).
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-$([ -x "$here/.venv/bin/python" ] && echo "$here/.venv/bin/python" || echo python3)}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$here/src${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 480 "$python" "$here/bench" gpu "$@"
