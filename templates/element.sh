
# Which element of the group this is: the number given, and in an array that within it.
# shellcheck disable=SC2034  # job.sh reads it
clusterfn_element=$(($1 + ${SLURM_ARRAY_TASK_ID:-${SGE_TASK_ID:-0}}))
mkdir -p @@job
