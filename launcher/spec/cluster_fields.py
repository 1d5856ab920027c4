"""The options of each kind of cluster: a part of the table in fields.py, from which reader, schema and reference are
made.
"""

from msgspec.structs import replace

from launcher.spec import checks
from launcher.spec.kinds.groups import WORD, Flag, ListOf, TableOf
from launcher.spec.kinds.names import JOB_NAME, SlurmOption
from launcher.spec.kinds.numbers import Boolean, Integer
from launcher.spec.kinds.sections import Field, Section, Shorthand
from launcher.spec.kinds.text import Choice, Text, any_path, word
from launcher.spec.kinds.times import Duration
from launcher.spec.model import GridEngine, Kubernetes, Login, Lsf, Notice, Pbs, Slurm, Ssh, SshHost

_HOST = r"[A-Za-z0-9._:][A-Za-z0-9._:-]{0,252}"
_USER = r"[A-Za-z_][A-Za-z0-9._-]{0,63}"
_MAIL_TYPES = (
    "ALL", "BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
    "TIME_LIMIT_80", "TIME_LIMIT_50", "NONE",
)  # fmt: skip

_INTERFACE = word("a network interface", r"[A-Za-z0-9][A-Za-z0-9._,@-]*")

SLURM = Section(
    Slurm,
    (
        Field("partition", word("a partition"), "Partition, or several with commas", example="gpu"),
        Field("account", word("an account"), "Account that is charged", example="my_project"),
        Field("qos", word("a QOS"), "Quality of service", example="normal"),
        Field("constraint", word("a constraint"), "Features that nodes must have", example="a100|h100"),
        Field("reservation", word("a reservation"), "Reservation to use", example="maintenance"),
        Field("nodelist", ListOf(word("a host"), single=True), "Nodes that must be among those used",
              example="[gpu01]"),
        Field("exclude", ListOf(word("a host"), single=True), "Nodes that are not used", example="[gpu07, gpu08]"),
        Field("gres", word("a list of resources"), "Generic resources of each node, instead of gpus_per_node",
              example="gpu:a100:4"),
        Field("mail_user", word("a mail address"), "Receiver of mail", example="me@example.org"),
        Field("mail_type", ListOf(Choice(_MAIL_TYPES), single=True), "Occasions of mail", example="[END, FAIL]"),
        Field("signal_before", Duration(zero=False), "How long before the time limit ranks are asked to save, so that "
              "the run continues in the next job", ("signal_before_s",), "2m"),
        Field("interface", _INTERFACE, "Network interface that ranks and agents use", example="ib0"),
        Field("container", Text("a container", r"[^\s-].*"), "Container of the run's processes: an image for Pyxis (a "
              ".sqsh file or a name in a registry), a .sif file, or a command such as `apptainer exec --nv image.sif`",
              example="/images/train.sqsh"),
        Field("extra", TableOf(SlurmOption(), Flag(Text())),
              "More options of sbatch without their dashes; true is an option without a value",
              example="{exclusive: true, comment: nightly}"),
    ),
)  # fmt: skip


def _own_options(program: str, ours: str) -> TableOf:
    """Return the kind of value for a mapping of further options to the submitting command `program`, such as qsub.

    `ours` is a regular expression for the names of options that the launcher writes itself, which are refused.
    """
    name = rf"(?!(?:{ours})$)[A-Za-z_]{{1,20}}"
    words = f"an option of {program} without its dash that the launcher does not write itself"
    return TableOf(Text(words, name), Flag(Text(f"words for {program}", r"[^'\"#$\\]*")))


_HOSTS = ListOf(word("a host", r"[A-Za-z0-9][A-Za-z0-9.-]*"), single=True)
_GPU_RESOURCE = word("a resource", r"[A-Za-z][A-Za-z0-9_.-]*")
_WARN_BEFORE = Field(
    "warn_before",
    Duration(zero=False),
    "How long before the time limit ranks are asked to save, so that the run continues in the next job",
    ("warn_before_s",),
    "2m",
)
_MORE = "More options of {} without their dash; true is an option without a value"

GRID_ENGINE = Section(
    GridEngine,
    (
        Field("pe", word("a parallel environment"), "Parallel environment: one that gives each host a fixed number of "
              "slots, for several nodes", example="launch"),
        Field("queue", word("a queue"), "Queue, or several with commas", example="gpu.q"),
        Field("project", word("a project"), "Project that is charged", example="my_project"),
        Field("gpu_resource", _GPU_RESOURCE, "The site's name for GPUs, as in -l gpu=2", example="gpu"),
        Field("exclude", _HOSTS, "Nodes that are not used", example="[gpu07, gpu08]"),
        Field("interface", _INTERFACE, "Network interface that ranks and agents use", example="ib0"),
        _WARN_BEFORE,
        Field("extra", _own_options("qsub", "pe|q|P|N|o|e|j|S|r|notify|ac|v|V|t|terse|cwd|wd|clear|b|sync|now|w|i|h|a|"
              "help"), _MORE.format("qsub"), example="{l: \"h_vmem=4G\", m: ea}"),
    ),
)  # fmt: skip

PBS = Section(
    Pbs,
    (
        Field("queue", word("a queue"), "Queue", example="gpu"),
        Field("project", word("a project"), "Project, as of qsub -P", example="my_project"),
        Field("account", word("an account"), "Account that is charged, as of qsub -A", example="my_account"),
        Field("gpu_resource", _GPU_RESOURCE, "The site's name for GPUs, as in -l select=1:ngpus=2",
              example="ngpus"),
        Field("select", ListOf(word("a resource and its value", r"[A-Za-z][A-Za-z0-9_.-]*=[A-Za-z0-9_.+/-]+"),
              single=True), "Further requirements of each host, as in -l select", example="[gpu_model=a100]"),
        Field("place", word("where hosts are", r"[A-Za-z]+(?::[A-Za-z0-9_=]+){0,3}"), "How hosts are allocated, as of "
              "qsub -l place; each has one chunk of the job", example="scatter:excl"),
        Field("interface", _INTERFACE, "Network interface that ranks and agents use", example="ib0"),
        _WARN_BEFORE,
        Field("extra", _own_options("qsub", "q|P|A|N|o|e|j|J|S|r|v|V|h|a|p|C|I|X|z|G"), _MORE.format("qsub"),
              example="{l: \"software=cuda\", m: ea}"),
    ),
)  # fmt: skip

LSF = Section(
    Lsf,
    (
        Field("queue", word("a queue"), "Queue", example="gpu"),
        Field("project", word("a project"), "Project, as of bsub -P", example="my_project"),
        Field("user_group", word("a user group"), "User group that is charged, as of bsub -G", example="my_group"),
        Field("app", word("an application profile"), "Application profile, as of bsub -app", example="training"),
        Field("gpu", word("requirements of GPUs", r"[a-z_]+=[A-Za-z0-9_.,/-]+(?::[a-z_]+=[A-Za-z0-9_.,/-]+){0,9}"),
              "Further requirements of GPUs besides their number, as in bsub -gpu", example="mode=exclusive_process"),
        Field("exclude", _HOSTS, "Nodes that are not used", example="[gpu07, gpu08]"),
        Field("interface", _INTERFACE, "Network interface that ranks and agents use", example="ib0"),
        _WARN_BEFORE,
        Field("extra", _own_options("bsub", "J|Jd|o|oo|e|eo|r|rn|Q|q|P|G|app|n|gpu|W|H|b|w|env|I|Ip|Is|K|i|is|L"),
              _MORE.format("bsub"), example="{R: \"rusage[mem=4000]\", N: true}"),
    ),
)  # fmt: skip

_K8S_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_LABEL = r"(?:[a-z0-9.-]+/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"

KUBERNETES = Section(
    Kubernetes,
    (
        Field("image", word("an image"), "Image of every pod; the image or the volume must have the Python that you "
              "submit with, under the same path", example="registry.example.org/train:1"),
        Field("claim", word("a volume claim", _K8S_NAME), "PersistentVolumeClaim that all pods share", example="runs"),
        Field("mount", Text("an absolute path", r"/[^\s,:]*"), "Path where pods mount the claim; the machine that "
              "submits must have it under the same path, and runs must be in it", example="/shared"),
        Field("queue", word("a local queue", _K8S_NAME), "Local queue of Kueue", example="team-a"),
        Field("gpu_resource", word("a resource", _LABEL), "The cluster's name for GPUs", example="nvidia.com/gpu"),
        Field("selector", ListOf(word("a label and its value", rf"{_LABEL}=[A-Za-z0-9_.-]*"), single=True),
              "Labels that nodes must have", example="[gpu=a100]"),
    ),
)  # fmt: skip

_OF_A_HOST = (
    Field("user", word("a user name", _USER), "User on the host", example="trainer"),
    Field("port", Integer(1, 65535), "Port of the host's sshd", example="2222"),
    Field("key", any_path("the path of a key"), "Private key on this machine", example="~/.ssh/id_ed25519"),
    Field("gpus", Integer(0, 4096), "GPUs to use on the host; by default all", example="4"),
    Field("python", any_path("the path of a Python interpreter"), "Interpreter on the host; by default its python3",
          example="/opt/py/bin/python"),
    Field("workdir", any_path("the path of a folder"), "Folder on the host for code and runs; by default ~/launch",
          example="/scratch/launch"),
    Field("transport", Choice(("paramiko", "openssh")), "How the host is reached; by default by paramiko, which is "
          "built in. openssh: by your own ssh program, with its ProxyCommand, certificates, Kerberos, hardware keys "
          "and open connections",
          example="openssh"),
)  # fmt: skip

_HOST_OPTIONS = Section(
    SshHost,
    (
        Field("name", word("a host name", _HOST), "Host name, address, or alias of the SSH configuration",
              example="gpu01"),
        Field("address", word("a host name or address", _HOST), "Address by which other hosts reach this host, if "
              "training has a network of its own", example="10.0.0.7"),
        *_OF_A_HOST,
    ),
    required=True,
)  # fmt: skip

NOTICE = Section(
    Notice,
    (
        Field("file", any_path("the path of a file"), "A file on the host that warns that the host will leave; "
              "relative to the ranks' working folder", example="/run/host-goes"),
        Field("command", ListOf(WORD, minimum=1), "A command that exits with 0 if its host will leave; each host runs "
              "it every 5 s, and ends it after 10 s", example="[./notice.sh]"),
        Field("signal", Choice(("HUP", "PWR")), "A signal to the agent that warns that its host will leave; not USR1, "
              "USR2 and TERM, which stop the whole run", example="PWR"),
        Field("lead", Duration(zero=False), "Time between the warning and the host's end; at least recovery.grace",
              ("lead_s",), "2m"),
    ),
    checks=(checks.notice_needs_a_source,),
)  # fmt: skip

SSH = Section(
    Ssh,
    (
        Field("hosts", ListOf(Shorthand(_HOST_OPTIONS, "name"), may_be_blank=True, name_of=lambda host: host.name),
              "Hosts that may be used: names, or mappings with further options", example="[gpu01, gpu02]"),
        Field("shared", Boolean(), "All hosts see the workdir on one disk, under the same path", example="true"),
        *(replace(field, doc=f"{field.doc}; for hosts without an own value") for field in _OF_A_HOST),
        Field("agent", Boolean(), "Keys of the SSH agent may be used too", example="true"),
    ),
)  # fmt: skip

# A user and host, or an alias of the SSH configuration; never an option of ssh.
_LOGIN_NODE = r"(?:[A-Za-z_][A-Za-z0-9._-]{0,63}@)?[A-Za-z0-9._:][A-Za-z0-9._:-]{0,252}"
_FAR_PATH = r"~(?:/.*)?|[^~-].*"

LOGIN = Section(
    Login,
    (
        Field("node", Text("user@host or an alias of the SSH configuration", _LOGIN_NODE),
              "Login node of a cluster, reached by ssh", example="me@login.example.org"),
        Field("launch", Text("the path of the launch program there", _FAR_PATH), "Launch program on the login node",
              example="~/venv/bin/launch"),
        Field("folder", Text("the path of a folder there", _FAR_PATH), "Where code and runs are kept on the login node",
              example="~/launch"),
        Field("cluster", Text("the name of a cluster there", JOB_NAME), "The cluster's name on the login node",
              example="slurm"),
        Field("transport", Choice(("openssh", "paramiko")), "How the login node is reached: by your own ssh program, "
              "or by paramiko, which is built in", example="paramiko"),
    ),
)  # fmt: skip

# A spec has a section for each, named as the kind.
OF_KINDS = (
    Field("slurm", SLURM, "Options on Slurm clusters"),
    Field("gridengine", GRID_ENGINE, "Options on Grid Engine clusters"),
    Field("pbs", PBS, "Options on PBS clusters"),
    Field("lsf", LSF, "Options on LSF clusters"),
    Field("k8s", KUBERNETES, "Options on Kubernetes"),
    Field("ssh", SSH, "Options on SSH hosts"),
    Field("login", LOGIN, "How to get to a cluster with a login node; the clusters file says it once for all specs"),
)
OPTIONS_OF = {
    "slurm": SLURM,
    "gridengine": GRID_ENGINE,
    "pbs": PBS,
    "lsf": LSF,
    "k8s": KUBERNETES,
    "ssh": SSH,
    "login": LOGIN,
}
