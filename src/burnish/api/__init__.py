"""Interface of `import burnish` for programs: training, evaluation and plans in the words of a run file, and runs.

Rows, loaded models and the texts of functions are written into the folder of the run. After that everything works as on
the command line: the run can be resumed, reported and evaluated without the program.
"""
