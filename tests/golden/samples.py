"""Jobs whose script and sbatch line are compared with approved texts."""

from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.config.spec import Host, Interpreter, Resources
from clusterfn.scheduler import job_script

ODD = '/home/o\'brien/a b/ü $HOME `id` "q" ;&|*'

BARE = Host(name="tensor01", address="tensor01", scheduler="bare", source="clusterfn.yml:2")
SLURM = BARE._replace(name="hpc", scheduler="slurm")


def job(host=BARE, **changes):
    root = changes.pop("root", "/home/ada/.clusterfn")
    facts = dict(
        id="7f3a000011112222", name="train", host=host, root=root, bridge=f"{root}/bridge/abc123",
        host_python="/usr/bin/python3", resources=Resources(), interpreter=Interpreter("/opt/py/bin/python", (3, 11)),
    )  # fmt: skip
    return JobSpec(**{**facts, **changes})


def script_of(made):
    """job.sh of a job."""
    return job_script.job_script(made)


FULL = BARE._replace(
    setup=("export SCRATCH=/scratch/ada", "umask 027"),
    modules=("gcc/12", "cuda/12.4"),
    prolog=("nvidia-smi -L || true",),
)
SCRIPTS = {
    "plain": job(),
    "odd-paths": job(root=ODD, host_python=f"{ODD}/python"),
    "everything": job(FULL, modules=("cuda/12.4", "openmpi")),
    "group": job(FULL, root=ODD, group=Group(10, 1, 4, 4)),
}

_GPU = Resources(cores=4, memory_bytes=16 * 2**30 + 1, gpus=2, time_s=5400.5)
_SITE = {"account": "ab12", "partition": {"cpu": "std", "gpu": "gpuq"}, "exclusive": True, "export": "ALL"}
SUBMISSIONS = {
    "plain": job(SLURM),
    "everything-asked": job(SLURM, resources=_GPU),
    "odd-paths": job(SLURM, root=ODD),
    "retries": job(SLURM, retries=2),
    "retries-beat-the-site": job(SLURM._replace(scheduler_options={"no-requeue": True}), retries=2),
    "site": job(SLURM._replace(scheduler_options=_SITE), resources=_GPU),
    "site-cpu": job(SLURM._replace(scheduler_options=_SITE)),
    "kind-of-card": job(SLURM._replace(scheduler_options={"gres": "lscratch:50,gpu:a100"}), resources=_GPU),
    "kind-without-cards": job(SLURM._replace(scheduler_options={"gres": "lscratch:50,gpu:a100"})),
    "gpus": job(SLURM._replace(gpu_option="gpus", scheduler_options={"gres": "gpu:a100"}), resources=_GPU),
    "gpus-per-node": job(SLURM._replace(gpu_option="gpus-per-node"), resources=_GPU),
    "type-of-card": job(SLURM, resources=_GPU._replace(gpu_type="a6000")),
    "type-beats-kind": job(
        SLURM._replace(scheduler_options={"gres": "lscratch:50,gpu:a100"}), resources=_GPU._replace(gpu_type="h100")
    ),
    "type-gpus": job(SLURM._replace(gpu_option="gpus"), resources=_GPU._replace(gpu_type="a6000")),
    "type-gpus-per-node": job(SLURM._replace(gpu_option="gpus-per-node"), resources=_GPU._replace(gpu_type="a6000")),
    "gpus-without-gres": job(SLURM._replace(gpu_option="gpus", scheduler_options={"gres": None}), resources=_GPU),
    "nodes": job(SLURM._replace(scheduler_options={"ntasks": 4, "nodes": 1}), resources=_GPU._replace(nodes=2)),
    "nodes-gpus": job(SLURM._replace(gpu_option="gpus"), resources=_GPU._replace(nodes=2)),
    "dropped": job(SLURM._replace(scheduler_options={"mem": None, "time": None, "export": None, "gres": None})),
    "memory-per-core": job(SLURM._replace(scheduler_options={"mem-per-cpu": "2G"})),
    "memory-asked-beats-per-core": job(SLURM._replace(scheduler_options={"mem-per-cpu": "2G"}), resources=_GPU),
    "dashes": job(SLURM._replace(scheduler_options={"comment": "--wrap=rm -rf ~", "constraint": "-x"})),
}
