#!/bin/bash
# A sweep as a job array, without MPI: every task measures one part on a node of its own.
#
#   sbatch --array=1-8 examples/slurm/sweep_array.sh SWEEP.toml FOLDER
#   katt merge FOLDER/part_*.h5 -o RESULT.h5          # when all have ended
#
# A task that was stopped or requeued goes on where it was: submit the same line again.
# KATT names the program where it is not on the PATH.
#SBATCH --job-name=katt-sweep
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
set -euo pipefail
if [[ $# -ne 2 || -z "${SLURM_ARRAY_TASK_ID:-}" ]]; then
  echo "usage: sbatch --array=1-N $0 SWEEP.toml FOLDER" >&2
  exit 2
fi
mkdir -p "$2"
# The tasks are numbered from 1: the array is 1-N. exec: the signal before the time limit reaches katt.
exec "${KATT:-katt}" sweep "$1" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
  -o "$2/part_$SLURM_ARRAY_TASK_ID.h5" --resume
