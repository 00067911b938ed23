"""What `import burnish` offers to a program: training, evaluation and plans in the words of a run file, and runs.

Everything in memory (rows, a loaded model, functions) is written into the folder of the run where that is possible. What
follows is the way of the command line: the run can be resumed, reported and evaluated without the program.
"""
