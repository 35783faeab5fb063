"""Many raw inputs judged from files to a file: in batches, with threads that decode, and resumed after a kill."""

from ddu.predicting.cluster import predict_to_folder as predict_to_folder
from ddu.predicting.inputs import Chunk as Chunk
from ddu.predicting.inputs import Inputs as Inputs
from ddu.predicting.job import predict_rows as predict_rows
from ddu.predicting.job import predict_to_file as predict_to_file
from ddu.predicting.tables import check_output as check_output

__all__ = ["Chunk", "Inputs", "check_output", "predict_rows", "predict_to_file", "predict_to_folder"]
