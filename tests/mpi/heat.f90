! A small program of the kind that MPI is used for: the temperature of a square plate by Jacobi's method, on a grid of ranks with rows and columns of
! their own. With a temperature of x + y at the edges that is the solution everywhere.
program heat
  use mpi
  implicit none
  integer, parameter :: own = 6
  integer :: ranks, rank, code, grid, row, step, i, j, left, right, below, above, column, hottest
  integer :: dims(2) = 0, place(2), requests(8)
  logical :: periods(2) = .false., keeps(2)
  double precision :: u(0:own + 1, 0:own + 1), next(own, own), change, largest, mean, inrow, pair(2), top(2)

  call MPI_INIT(code)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, code)
  call MPI_DIMS_CREATE(ranks, 2, dims, code)
  call MPI_CART_CREATE(MPI_COMM_WORLD, 2, dims, periods, .true., grid, code)
  call MPI_COMM_RANK(grid, rank, code)
  call MPI_CART_COORDS(grid, rank, 2, place, code)
  call MPI_CART_SHIFT(grid, 0, 1, left, right, code)
  call MPI_CART_SHIFT(grid, 1, 1, below, above, code)
  keeps = [.true., .false.]
  call MPI_CART_SUB(grid, keeps, row, code)
  call MPI_TYPE_VECTOR(own, 1, own + 2, MPI_DOUBLE_PRECISION, column, code)
  call MPI_TYPE_COMMIT(column, code)

  do j = 0, own + 1
    do i = 0, own + 1
      u(i, j) = solution(i, j)
    end do
  end do
  u(1:own, 1:own) = 0
  if (right /= MPI_PROC_NULL) u(own + 1, :) = 0
  if (left /= MPI_PROC_NULL) u(0, :) = 0
  if (above /= MPI_PROC_NULL) u(:, own + 1) = 0
  if (below /= MPI_PROC_NULL) u(:, 0) = 0
  do step = 1, 20000
    call MPI_IRECV(u(0, 1), 1, column, left, 0, grid, requests(1), code)
    call MPI_IRECV(u(own + 1, 1), 1, column, right, 0, grid, requests(2), code)
    call MPI_IRECV(u(1, 0), own, MPI_DOUBLE_PRECISION, below, 0, grid, requests(3), code)
    call MPI_IRECV(u(1, own + 1), own, MPI_DOUBLE_PRECISION, above, 0, grid, requests(4), code)
    call MPI_ISEND(u(1, 1), 1, column, left, 0, grid, requests(5), code)
    call MPI_ISEND(u(own, 1), 1, column, right, 0, grid, requests(6), code)
    call MPI_ISEND(u(1, 1), own, MPI_DOUBLE_PRECISION, below, 0, grid, requests(7), code)
    call MPI_ISEND(u(1, own), own, MPI_DOUBLE_PRECISION, above, 0, grid, requests(8), code)
    call MPI_WAITALL(8, requests, MPI_STATUSES_IGNORE, code)
    next = 0.25d0 * (u(0:own - 1, 1:own) + u(2:own + 1, 1:own) + u(1:own, 0:own - 1) + u(1:own, 2:own + 1))
    change = maxval(abs(next - u(1:own, 1:own)))
    u(1:own, 1:own) = next
    call MPI_ALLREDUCE(change, largest, 1, MPI_DOUBLE_PRECISION, MPI_MAX, grid, code)
    if (largest < 1d-10) exit
  end do

  ! The mean of the plate by way of its rows' sums, and the rank that has the hottest point.
  call MPI_ALLREDUCE(sum(u(1:own, 1:own)), inrow, 1, MPI_DOUBLE_PRECISION, MPI_SUM, row, code)
  call MPI_REDUCE(inrow, mean, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, grid, code)
  mean = mean / (dims(1) * own * own * dble(ranks))
  pair = [maxval(u(1:own, 1:own)), dble(rank)]
  call MPI_ALLREDUCE(pair, top, 1, MPI_2DOUBLE_PRECISION, MPI_MAXLOC, grid, code)
  hottest = nint(top(2))
  if (rank == 0) then
    if (abs(mean - (dims(1) * own + 1 + dims(2) * own + 1) / 2d0) > 1d-5 .or. hottest /= ranks - 1) then
      print *, 'wrong: mean', mean, 'hottest', hottest
      call MPI_ABORT(MPI_COMM_WORLD, 1, code)
    end if
    print *, 'solved'
  end if
  call MPI_TYPE_FREE(column, code)
  call MPI_COMM_FREE(row, code)
  call MPI_COMM_FREE(grid, code)
  call MPI_FINALIZE(code)

contains
  double precision function solution(i, j)
    integer :: i, j
    solution = place(1) * own + i + place(2) * own + j
  end function
end program
