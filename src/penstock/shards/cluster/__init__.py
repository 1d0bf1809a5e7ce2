"""Runs the tasks of pack, check and index on a Ray cluster instead of on worker processes of this machine.

join (connects to the cluster) → ray_runner (runs tasks on nodes that see the same files); index_tasks (indexes shards)
"""
