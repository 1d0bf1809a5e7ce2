"""Read objects of S3-compatible, Google and Azure stores and of web servers, never mixing versions of an object.

url → client → request (retry, io_thread) → remote_file, listing
"""
