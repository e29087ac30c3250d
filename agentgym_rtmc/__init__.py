"""agentgym-rtmc: reinforcement learning of language-model agents with step-level credit from rollout trees.

Importing this package registers the environments of the project with Gymnasium, lazily: nothing heavy is imported.
"""

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.episodes import Episode, EpisodeGroup, Opening, Turn
from agentgym_rtmc.registration import find_env, load_task_set, register_env, registered_envs
from agentgym_rtmc.tasks import Task, TaskSet

register_env(
    "agentgym_rtmc/CodeRepair-v0",
    "agentgym_rtmc.environments.code_repair.env:CodeRepairEnv",
    summary="find and mend a planted bug in a small Python program, one shell command per turn",
    task_sets={
        "builtin": "agentgym_rtmc.environments.code_repair.builtin:load_builtin",
        "humanevalpack": "agentgym_rtmc.environments.code_repair.humanevalpack:load_humanevalpack",
        "quixbugs": "agentgym_rtmc.environments.code_repair.quixbugs:load_quixbugs",
    },
    reference="agentgym_rtmc.environments.code_repair.players:reference",
    demonstrator="agentgym_rtmc.environments.code_repair.players:demonstrator",
    default_signature="operations",
)

register_env(
    "agentgym_rtmc/DataQuestions-v0",
    "agentgym_rtmc.environments.data_questions.env:DataQuestionsEnv",
    summary="answer questions about a small database with read-only SQL, over several turns",
    task_sets={
        "generated": "agentgym_rtmc.environments.data_questions.tasks:load_questions",
    },
    reference="agentgym_rtmc.environments.data_questions.players:reference",
    demonstrator="agentgym_rtmc.environments.data_questions.players:demonstrator",
    default_signature="tool_state",
)
register_env(
    "agentgym_rtmc/Terminal-v0",
    "agentgym_rtmc.environments.terminal.env:TerminalEnv",
    summary="small jobs on files and text in a sandboxed shell, checked by the files that result",
    task_sets={
        "jobs": "agentgym_rtmc.environments.terminal.tasks:load_jobs",
    },
    reference="agentgym_rtmc.environments.terminal.players:reference",
    demonstrator="agentgym_rtmc.environments.terminal.players:demonstrator",
    default_signature="workspace",
)

register_env(
    "agentgym_rtmc/ServiceDesk-v0",
    "agentgym_rtmc.environments.service_desk.env:ServiceDeskEnv",
    summary="serve customers of a shop by its policy, with 22 typed tools on a real database",
    task_sets={"generated": "agentgym_rtmc.environments.service_desk.tasks:load_generated"},
    reference="agentgym_rtmc.environments.service_desk.players:reference",
    demonstrator="agentgym_rtmc.environments.service_desk.players:demonstrator",
    default_signature="tool_state",
)

register_env(
    "agentgym_rtmc/SWEBenchLite-v0",
    "agentgym_rtmc.environments.swebench.env:SWEBenchEnv",
    summary="resolve issues of SWE-bench Lite (300), graded by the official harness",
    task_sets={
        "lite": "agentgym_rtmc.environments.swebench.splits:load_lite",
    },
    reference="agentgym_rtmc.environments.swebench.players:reference",
    reporter="agentgym_rtmc.environments.swebench.reporter:write_reports",
    prepare="agentgym_rtmc.environments.swebench.image:prepare_task",
    kwargs={"env_id": "agentgym_rtmc/SWEBenchLite-v0"},
)
register_env(
    "agentgym_rtmc/SWEBenchVerified-v0",
    "agentgym_rtmc.environments.swebench.env:SWEBenchEnv",
    summary="resolve issues of SWE-bench Verified (500), graded by the official harness",
    task_sets={
        "verified": "agentgym_rtmc.environments.swebench.splits:load_verified",
    },
    reference="agentgym_rtmc.environments.swebench.players:reference",
    reporter="agentgym_rtmc.environments.swebench.reporter:write_reports",
    prepare="agentgym_rtmc.environments.swebench.image:prepare_task",
    kwargs={"env_id": "agentgym_rtmc/SWEBenchVerified-v0"},
)
register_env(
    "agentgym_rtmc/SWEBench-v0",
    "agentgym_rtmc.environments.swebench.env:SWEBenchEnv",
    summary="resolve issues of any dataset in SWE-bench's form (task_options.source)",
    task_sets={
        "dataset": "agentgym_rtmc.environments.swebench.splits:load_dataset",
        "lite": "agentgym_rtmc.environments.swebench.splits:load_lite",
        "verified": "agentgym_rtmc.environments.swebench.splits:load_verified",
    },
    reference="agentgym_rtmc.environments.swebench.players:reference",
    reporter="agentgym_rtmc.environments.swebench.reporter:write_reports",
    prepare="agentgym_rtmc.environments.swebench.image:prepare_task",
    kwargs={"env_id": "agentgym_rtmc/SWEBench-v0"},
)

__version__ = "0.1.0"
__all__ = [
    "Call",
    "Episode",
    "EpisodeGroup",
    "Opening",
    "Task",
    "TaskSet",
    "TextProtocol",
    "Turn",
    "find_env",
    "load_task_set",
    "register_env",
    "registered_envs",
]
