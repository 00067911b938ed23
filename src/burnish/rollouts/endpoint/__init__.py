"""A token endpoint: an OpenAI-compatible server over a rollout engine, for agents that are written elsewhere.

An agent is a program that talks to a model over HTTP. It gets a base URL of its own, `http://127.0.0.1:PORT/t/ID/v1`,
and everything that it asks there belongs to one **trajectory**. The server keeps the trajectory's exact tokens:

- What the policy says is kept as it was sampled. It is sent to the agent as text, and never tokenised again.
- A request that repeats the history and adds messages goes on: only what is new becomes tokens and is appended
  (`burnish.data.observations`).
- Every other request (an edited history, another system prompt, other tools, two requests at a time) begins a
  **branch**: a further row, whose prompt is what the engine sees. If earlier turns are unchanged, the branch has their
  exact tokens as its prompt. So each sampled token is in exactly one row, after exactly the tokens that it was sampled
  after, whatever the agent does. All rows of a trajectory have its reward, and are in the group of its prompt.

Requests wait at a **desk** (`desk.py`). One thread, the one that owns the engine, takes all that wait and samples them
in one call (`turns.py`); it alone touches trajectories and tokenizer, so neither has locks. The noise of a turn is a
function of (seed, step, prompt, branch, turn, sample index), so a trajectory does not depend on what is sampled with
it, as long as its agent is deterministic and asks one thing at a time.

Sampling settings are those of the run. A request that wants others is refused with a reason; `ignore` samples as the
run does and names what was ignored in the header `x-burnish-ignored`; a server that trains nothing follows them.

From the bottom up: `demands.py` checks what requests demand of an answer, `requests.py` reads them, `speech.py` turns
messages into tokens and back, `trajectory.py` keeps branches, `answers.py` writes answers, `responses.py` reads and
writes OpenAI's other form, `server.py` speaks HTTP (the only file that imports starlette and uvicorn), `agents.py` runs
agents for a training run, `standing.py` serves a model on its own.
"""
