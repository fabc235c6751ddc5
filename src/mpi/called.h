// The functions of the MPI that the interposer calls by their names. They may be missing when the interposer is loaded:
// the program may load its MPI later, or may be none of an MPI (a shell). The dynamic linker looks them up at the first
// call; where it has to do that at once (LD_BIND_NOW), it accepts that they are missing, for they are weak.
#pragma once

#pragma weak PMPI_Cancel
#pragma weak PMPI_Comm_call_errhandler
#pragma weak PMPI_Comm_create_keyval
#pragma weak PMPI_Comm_free
#pragma weak PMPI_Comm_get_attr
#pragma weak PMPI_Comm_get_errhandler
#pragma weak PMPI_Comm_get_name
#pragma weak PMPI_Comm_rank
#pragma weak PMPI_Comm_remote_size
#pragma weak PMPI_Comm_set_attr
#pragma weak PMPI_Comm_set_errhandler
#pragma weak PMPI_Comm_size
#pragma weak PMPI_Comm_split
#pragma weak PMPI_Comm_split_type
#pragma weak PMPI_Comm_test_inter
#pragma weak PMPI_Errhandler_free
#pragma weak PMPI_Error_class
#pragma weak PMPI_Finalized
#pragma weak PMPI_Grequest_complete
#pragma weak PMPI_Grequest_start
#pragma weak PMPI_Info_create
#pragma weak PMPI_Info_dup
#pragma weak PMPI_Info_free
#pragma weak PMPI_Info_get
#pragma weak PMPI_Info_set
#pragma weak PMPI_Initialized
#pragma weak PMPI_Irecv
#pragma weak PMPI_Pack
#pragma weak PMPI_Query_thread
#pragma weak PMPI_Reduce_local
#pragma weak PMPI_Sendrecv
#pragma weak PMPI_Status_set_cancelled
#pragma weak PMPI_Status_set_elements
#pragma weak PMPI_Type_commit
#pragma weak PMPI_Type_contiguous
#pragma weak PMPI_Type_create_hindexed
#pragma weak PMPI_Type_create_struct
#pragma weak PMPI_Type_dup
#pragma weak PMPI_Type_free
#pragma weak PMPI_Type_get_contents
#pragma weak PMPI_Type_get_envelope
#pragma weak PMPI_Type_get_extent
#pragma weak PMPI_Type_get_true_extent
#pragma weak PMPI_Type_size_x
#pragma weak PMPI_Unpack
#pragma weak PMPI_Win_shared_query

// For datatypes of large counts. The MPI underneath may be one of before MPI 4 with the same binary interface: it has
// neither these nor such datatypes (hasLargeCounts).
#if MPI_VERSION >= 4
#pragma weak PMPI_Pack_c
#pragma weak PMPI_Type_get_contents_c
#pragma weak PMPI_Type_get_envelope_c
#pragma weak PMPI_Unpack_c
#endif
