"""A token endpoint: an OpenAI-compatible server over a rollout engine, for agents that are written elsewhere.

An agent is a program that talks to a model over HTTP. It gets its own base URL, `http://127.0.0.1:PORT/t/ID/v1`, and
all of its requests there belong to one **trajectory**. The server keeps the trajectory's exact tokens:

- A turn of the policy is kept as it was sampled. It is sent to the agent as text, and never tokenised again.
- A request that repeats the history and adds messages continues it: only the new messages are tokenised and appended
  (`burnish.agents.observations`).
- Every other request (an edited history, another system prompt, other tools, two requests at a time) begins a
  **branch**: another row, whose prompt is the engine's input. If earlier turns are unchanged, the branch has their
  exact tokens as its prompt.

So each sampled token is in exactly one row, after exactly the tokens that it was sampled after, whatever the agent
does. All rows of a trajectory have its reward, and are in the group of its prompt.

Requests wait in a queue (`request_queue.py`). The thread that owns the engine takes all waiting requests and
samples them in one call (`turns.py`); it alone uses trajectories and tokenizer, so neither has locks. The noise of a
turn is a function of (seed, step, prompt, branch, turn, sample index), so a trajectory does not depend on what is
sampled with it, as long as its agent is deterministic and sends one request at a time.

Sampling settings come from the run. A request for other settings is refused with a reason; `ignore` samples with the
run's and names the ignored ones in the header `x-burnish-ignored`; a server that trains nothing follows the request.

From the bottom up: `answer_constraints.py` checks answers against what requests demand, `requests.py` reads requests,
`chat_tokens.py` turns messages into tokens and back, `trajectory.py` keeps branches, `answers.py` writes answers,
`responses.py` reads and writes OpenAI's newer form, `server.py` speaks HTTP (the only file of this room that imports
starlette and uvicorn), `agents.py` runs agents for a training run, `serving.py` serves a model on its own.
"""
