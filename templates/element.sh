
# Which element of the group this is: the number given, and in an array that within it.
# shellcheck disable=SC2034  # job.sh reads it
clusterfn_element=@@number
mkdir -p @@job
