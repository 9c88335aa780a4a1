#!/bin/bash
# A sweep over the nodes of one job, with MPI: the points are handed out as nodes become free.
#
#   sbatch --nodes=8 examples/slurm/sweep_mpi.sh SWEEP.toml RESULT.h5
#
# Rank 0 hands out and measures nothing, so there is one rank more than nodes; the first node has two.
# A job that was stopped or requeued goes on where it was: submit the same line again.
# KATT names the program where it is not on the PATH, MPIRUN the launcher.
#SBATCH --job-name=katt-sweep
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail
if [[ $# -ne 2 || -z "${SLURM_JOB_NUM_NODES:-}" ]]; then
  echo "usage: sbatch --nodes=N $0 SWEEP.toml RESULT.h5" >&2
  exit 2
fi
# By node in turn: rank N is again on the first. --oversubscribe: there it has no slot of its own.
exec "${MPIRUN:-mpirun}" -n "$((SLURM_JOB_NUM_NODES + 1))" --map-by node --bind-to none --oversubscribe \
  "${KATT:-katt}" sweep "$1" -o "$2" --resume
