# Tests of `coli bench --quality`: items, rows, files of scores, statistics; and the scores themselves.
coli_test(loss_test unit)
coli_test(score_row_test unit)
coli_test(tasks_test unit)
coli_test(score_file_test unit)
coli_fuzz(tasks)
coli_fuzz(scores)
