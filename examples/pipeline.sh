#!/usr/bin/env bash
# Generate heads of several known ranks, estimate them all in one command, and hold one against the other.
#
#   examples/pipeline.sh [FOLDER]     files and results.jsonl are left in FOLDER (default: a temporary one)
#
# Prints a table: file, true rank, estimated rank, interval, status, energy rank. Ends with the exit code of
# rankprobe: 0 when every answer may be acted on, 4 when one may not, 2 or 3 when a file could not be used.
set -euo pipefail

if ! command -v jq >/dev/null; then
  echo "pipeline.sh: error: jq is missing; install it (apt-get install jq, brew install jq)" >&2
  exit 5
fi

folder=${1:-}
if [[ -z $folder ]]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"

# One file per head. The rank is in the file's name for the table below only: the truth that generate keeps in
# the file, under /teacher, is never opened by estimate. A failure ends the script (set -e).
for teacher in softmax_qk linear_qk; do
  for rank in 1 4 8; do
    rankprobe generate --teacher "$teacher" --rank "$rank" --sequences 1000 --seed "$rank" --force \
      -o "$folder/$teacher-r$rank.h5"
  done
done

# One command over all files. Answers go to standard output, one JSON object a line; a file that cannot be used
# costs one line on standard error, and the others go on. Codes that a script should tell apart:
#   0  every file has an answer          4  every file was read, but an answer must not be acted on
#   2  wrong command   3  a file is bad  5  an optional dependency is missing   130  interrupted
# Under set -e the code has to be caught where it arises.
code=0
rankprobe estimate "$folder"/*-r*.h5 --format jsonl >"$folder/results.jsonl" || code=$?
case $code in
  0) ;;
  3 | 4) echo "pipeline.sh: some answers are missing or not usable; see the status column" >&2 ;;
  *) exit "$code" ;;
esac

# Each line repeats the file, the status and all numbers, so that jq needs nothing else.
{
  printf 'file\ttrue\trank\tinterval\tstatus\tenergy_rank\n'
  jq --raw-output '
    (.file | split("/") | last) as $name
    | [ $name,
        ($name | capture("-r(?<rank>[0-9]+)[.]h5$").rank),
        (.rank // "-"),
        ((.rank_interval // ["-", "-"]) | "[\(.[0]), \(.[1])]"),
        .status,
        (if .energy_rank == null then "-" else .energy_rank * 1000 | round / 1000 end) ]
    | @tsv' "$folder/results.jsonl"
}
exit "$code"
