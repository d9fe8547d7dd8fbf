"""`make bench`: Lamina beside other logs, queues and files, one workload definition for all."""
